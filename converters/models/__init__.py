"""What a user points at, made ready to load: :func:`open` and :class:`Model`."""

from .families import FAMILIES as FAMILIES
from .families import Family as Family
from .manifests import MANIFEST as MANIFEST
from .model import PROGRAMS as PROGRAMS
from .model import Model as Model
from .model import brought_back as brought_back
from .signature import Port as Port
from .signature import Signature as Signature
from .specs import open as open  # noqa: A004
