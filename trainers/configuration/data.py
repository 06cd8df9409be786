"""Where the examples of a run are, and what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Tag

from .section import CUSTOM, Section, chosen_by

Buckets = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Files(Section):
    """The splits of the data."""

    train: Path
    validation: Path
    test: Path | None = None


class Rows(Files):
    """The splits of the data, which may be in one file or folder.

    A folder with ``train.jsonl``, ``valid.jsonl`` and perhaps ``test.jsonl`` (mlx-lm's) holds all of them. A
    number for ``validation`` is the share of the training file's rows that SEED draws for it.
    """

    validation: Path | Share = 0.1  # type: ignore[assignment]  # more than Files allows
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class TextColumns(Section):
    """What the columns of a row of text are called in the file."""

    text: str = "text"
    prompt: str = "prompt"
    completion: str = "completion"
    messages: str = "messages"
    tools: str = "tools"


class TextData(Rows):
    """Texts to go on with: plain files, or rows with a text, a prompt and its completion, or a conversation.

    Attributes:
        length: padded lengths in tokens, of packed texts the largest; ``None`` chooses them from the data.
        too_long: what is done about longer texts: their end is cut, they are split, or refused.
        pack: put texts behind one another and divide them into blocks of one length. Attention and
            positions go on across texts; what ends a text is the tokenizer's own token.
        mask_prompt: count no loss on prompts, in conversations on all but the last message.
        chat_template: write prompts and completions by it; ``None`` does where the tokenizer has one.
        hide: the share of tokens that are hidden and to be found, for masked language models.
    """

    kind: Literal["text"]
    columns: TextColumns = TextColumns()
    length: Buckets | None = None
    too_long: Literal["cut", "split", "refuse"] = "cut"
    pack: bool = False
    mask_prompt: bool = False
    chat_template: bool | None = None
    hide: Share | None = None


class LabelledColumns(Section):
    """What the columns of a labelled text are called in the file."""

    text: str = "text"
    label: str = "label"


class LabelledData(Rows):
    """Texts with a label each: a name or a number, or a list of them where a text may have several.

    Attributes:
        length: padded lengths in tokens; ``None`` chooses them from the data.
        too_long: whether longer texts are cut or refused.
        classes: names of the labels in their order; ``None`` takes those of the training split in theirs.
    """

    kind: Literal["labelled"]
    columns: LabelledColumns = LabelledColumns()
    length: Buckets | None = None
    too_long: Literal["cut", "refuse"] = "cut"
    classes: Annotated[tuple[str, ...], Field(min_length=2)] | None = None


class Lengths(Section):
    """Padded lengths in tokens: a batch takes the smallest that fits; ``None`` chooses them from the data."""

    query: Buckets | None = None
    document: Buckets | None = None


class PairsColumns(Section):
    """What the columns of a pair are called in the file; ``negative`` and ``score`` may be missing."""

    query: str = "query"
    document: str = "document"
    negative: str = "negative"
    score: str = "score"


class PairsData(Rows):
    """Texts that belong together, perhaps with texts that do not, and with how well they do.

    Attributes:
        too_long: whether longer texts are cut or refused.
    """

    kind: Literal["pairs"]
    columns: PairsColumns = PairsColumns()
    lengths: Lengths = Lengths()
    too_long: Literal["cut", "refuse"] = "cut"


class PreferencesColumns(Section):
    """What the columns of a preference are called in the file."""

    prompt: str = "prompt"
    chosen: str = "chosen"
    rejected: str = "rejected"


class PreferencesData(Rows):
    """Prompts with two answers, of which one is preferred: texts, or messages for the chat template.

    Attributes:
        length: padded lengths in tokens of a prompt with its answer; ``None`` chooses them from the data.
        too_long: whether longer ones are cut or refused.
        chat_template: write texts by it too; ``None`` does where the tokenizer has one.
    """

    kind: Literal["preferences"]
    columns: PreferencesColumns = PreferencesColumns()
    length: Buckets | None = None
    too_long: Literal["cut", "refuse"] = "cut"
    chat_template: bool | None = None


class SeriesData(Rows):
    """Arrays, one row an example.

    Attributes:
        columns: the names in the file of the objective's inputs.
        dtypes: of inputs; where nothing is said, float32, and int64 for ``labels`` that are whole numbers.
        nan: what is done about numbers that are not finite: they are refused, replaced by 0 (but never
            labels and targets), or the examples that have them are left out.
    """

    kind: Literal["series"]
    columns: dict[str, str] = Field({"series": "series", "target": "target"}, min_length=1)
    dtypes: dict[str, Literal["float32", "float16", "int32", "int64"]] = Field({})
    nan: Literal["refuse", "replace", "drop"] = "refuse"


class PrefetchSection(Section):
    """Batches made ahead by WORKERS threads, DEPTH of them; the same ones for any value."""

    workers: NonNegativeInt = 1
    depth: NonNegativeInt = 2


class BarsData(Files):
    """Prices and volumes of many symbols in ``.npz`` files: windows of indicators, each with a class.

    The files have the arrays open, high, low, close and volume, of shape ``(symbols, bars)``.

    Attributes:
        window: bars that an example shows.
        interval: bars from one example of a symbol to the next.
        horizon: bars from the end of a window to the price that gives its class.
        threshold: part of the price that it has to rise or fall by to be class 2 or 0, and else 1;
            with 0 there are two classes, 1 where it rises.
        missing: what to do about bars with NaN: refuse them, replace them by bars without trade, or drop
            the windows that hold one.
        symbols_per_chunk: symbols whose indicators are computed together; as many as fit if ``null``.
        memory_limit_mb: device memory for that, in MB (1,000,000 bytes).
    """

    kind: Literal["bars"]
    window: PositiveInt = 32
    interval: PositiveInt = 1
    horizon: PositiveInt = 5
    threshold: NonNegativeFloat = 0.0
    missing: Literal["refuse", "replace", "drop"] = "refuse"
    symbols_per_chunk: PositiveInt | None = None
    memory_limit_mb: PositiveFloat = 256.0


class CustomData(Section):
    """A class of the user's, ``module:Class``, called with a split's name and OPTIONS.

    It has ``__len__`` and ``batch(rows)``, which returns the arrays of the objective by name; see
    :class:`~weighbridge.trainers.data.batches.Dataset` for what else it may have.
    """

    kind: Annotated[str, Field(pattern=":")]
    train: Path | None = None
    validation: Path | None = None
    test: Path | None = None
    options: dict[str, Any] = Field({})


Data = Annotated[
    Annotated[PairsData, Tag("pairs")]
    | Annotated[SeriesData, Tag("series")]
    | Annotated[TextData, Tag("text")]
    | Annotated[BarsData, Tag("bars")]
    | Annotated[LabelledData, Tag("labelled")]
    | Annotated[PreferencesData, Tag("preferences")]
    | Annotated[CustomData, Tag(CUSTOM)],
    chosen_by("kind"),
]
