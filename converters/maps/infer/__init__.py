"""Infer a map: which tensor of somebody's own port is which of the torch model's."""

from .evidence.probing import Runs as Runs
from .inferring import Draft as Draft
from .inferring import Guess as Guess
from .inferring import infer as infer
from .sides import Side as Side
