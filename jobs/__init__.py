"""Plan, stage, check, publish: the one way in which every verb that writes does its work."""

from .adapters import AdapterRequest as AdapterRequest
from .adapters import convert_adapter as convert_adapter
from .convert import convert as convert
from .export import export_coreml as export_coreml
from .export_gguf import export_gguf as export_gguf
from .merging.merge import merge as merge
from .options import CheckOptions as CheckOptions
from .options import Options as Options
from .options import PublishOptions as PublishOptions
from .options import WriteOptions as WriteOptions
from .parity import check as check
from .parity import record as record
from .pipeline import Outcome as Outcome
from .training import preflight as preflight
from .training import train as train
