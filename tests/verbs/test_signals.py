"""A command that is told to end removes what it was building."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.checkpoints import Writer
from weighbridge.converters.common.exits import Exit

ENDING = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def _heeded():
    """Restore the default of signals that whoever runs the tests may ignore (``nohup``)."""
    before = {one: signal.signal(one, signal.SIG_DFL) for one in ENDING}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


def convert(source, target):
    return ["convert", "torch-to-mlx", str(source), str(target), "--check", "none"]


# A signal may come between the opening of a file and its first name: the collector closes that file.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("_heeded")
@pytest.mark.parametrize("number", ENDING)
def test_a_signal_in_mid_write_leaves_nothing(number, tiny_bert_dir, tmp_path, monkeypatch):
    write, calls = Writer.write, []

    def interrupted(self, name, data):
        calls.append(name)
        if len(calls) == 5:
            os.kill(os.getpid(), number)
        return write(self, name, data)

    monkeypatch.setattr(Writer, "write", interrupted)
    before = [signal.getsignal(one) for one in ENDING]
    result = CliRunner().invoke(main, convert(tiny_bert_dir, tmp_path / "a" / "out"))
    assert result.exit_code == Exit.TERMINATED
    assert result.stderr == f"Terminated by {number.name}; nothing was left behind.\n"
    assert not list(tmp_path.iterdir())
    assert [signal.getsignal(one) for one in ENDING] == before


def test_more_signals_do_not_stop_the_removal(tiny_bert_dir, tmp_path):
    program = textwrap.dedent("""
        import os, signal, sys
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        from weighbridge.cli import main
        from weighbridge.converters.checkpoints import Writer
        from weighbridge.converters.results import staging
        def end(*_):
            os.kill(os.getpid(), signal.SIGTERM)
        remove = staging._remove
        def remove_and_end(path):
            end()
            remove(path)
        Writer.write, staging._remove = end, remove_and_end
        main(sys.argv[1:])
    """)
    command = [sys.executable, "-c", program, *convert(tiny_bert_dir, tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.TERMINATED
    assert not list(tmp_path.iterdir())


def test_a_signal_that_is_ignored_stays_so(tiny_bert_dir, tmp_path):
    program = textwrap.dedent("""
        import os, signal, sys
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        from weighbridge.cli import main
        from weighbridge.converters.checkpoints import Writer
        write = Writer.write
        def hang_up(self, *rest):
            os.kill(os.getpid(), signal.SIGHUP)
            return write(self, *rest)
        Writer.write = hang_up
        main(sys.argv[1:])
    """)
    command = [sys.executable, "-c", program, *convert(tiny_bert_dir, tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "model.safetensors").is_file()
