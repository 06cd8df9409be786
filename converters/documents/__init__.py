"""Documents: JSON, YAML and TOML of any origin, the one way in which text becomes values.

What comes out is safe to pass on: nested within a limit, keys are texts that name one value each, texts
can be written again, numbers are finite and short. Whatever is wrong is reported together, with its place.
"""

from .files import read_bytes, read_text
from .json_text import parse_json, parse_object, read_json, read_object, read_optional
from .kinds import ANSWER, CONFIG, INDEX, LINE, RECORD, TOKENIZER, Kind
from .settings import parse_yaml, read_settings

__all__ = [
    "ANSWER",
    "CONFIG",
    "INDEX",
    "LINE",
    "RECORD",
    "TOKENIZER",
    "Kind",
    "parse_json",
    "parse_object",
    "parse_yaml",
    "read_bytes",
    "read_json",
    "read_object",
    "read_optional",
    "read_settings",
    "read_text",
]
