"""The watchdog: an update that hangs leaves a dump of its stacks and ends the process."""

from __future__ import annotations

import threading

from weighbridge.trainers.runs.watchdog import Watchdog


def test_an_update_that_hangs_leaves_its_stacks(tmp_path, capfd):
    left = threading.Event()
    codes = []

    def leave(code):
        codes.append(code)
        left.set()

    def hanging_update():
        left.wait()

    with Watchdog(tmp_path, 0.02, leave) as watchdog, watchdog.update():
        hanging_update()
    assert codes == [3]
    assert "in hanging_update" in (tmp_path / "stack.txt").read_text()
    assert f"train {tmp_path} --resume" in capfd.readouterr().err


def test_between_updates_nothing_is_watched(tmp_path):
    codes = []
    with Watchdog(tmp_path, 0.01, codes.append) as watchdog:
        with watchdog.update():
            pass
        threading.Event().wait(0.1)
    assert codes == []
    assert not list(tmp_path.iterdir())


def test_none_watches_nothing(tmp_path):
    with Watchdog(tmp_path, None) as watchdog, watchdog.update():
        pass
