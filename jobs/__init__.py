"""Plan, stage, check, publish: the one way in which every verb that writes does its work."""

from .convert import convert as convert
from .convert import merge as merge
from .export import export_coreml as export_coreml
from .options import Options as Options
from .options import Outcome as Outcome
from .parity import check as check
from .parity import record as record
from .training import preflight as preflight
from .training import train as train
