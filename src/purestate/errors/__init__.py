"""One class per mistake.

An error states what happened, where, and the way out. The facts come in as arguments
and the text is made here, so that one place decides how purestate speaks. Each class
also derives from the built-in that Python programmers already catch for that mistake.
"""

from purestate.errors._base import PurestateError, PurestateWarning
from purestate.errors._declaring import (
    DeclarationError,
    InheritedInitError,
    ReservedNameError,
    UnannotatedArrayError,
)
from purestate.errors._host import (
    HostGradError,
    HostSpecError,
    HostVmapError,
    JaxInHostError,
)
from purestate.errors._state import (
    CheckError,
    DerivedFieldError,
    FieldError,
    FrozenStateError,
    NumberError,
    StaticFieldError,
    StrictFieldError,
    TracedEqualityError,
    UndeclaredFieldError,
    UnfinishedStateError,
    UnhashableStateError,
    UnsetFieldError,
)
from purestate.errors._transforms import (
    BatchAxisError,
    ConsumedStateError,
    DraftError,
    InPlaceWarning,
    JitDeclarationError,
    LostUpdateWarning,
    NothingToDifferentiateError,
    PackedAttributeError,
    PackError,
    PlaceError,
    RetraceWarning,
    SharedBufferWarning,
    StackError,
    StateDriftWarning,
)

__all__ = [
    "BatchAxisError",
    "CheckError",
    "ConsumedStateError",
    "DeclarationError",
    "DerivedFieldError",
    "DraftError",
    "FieldError",
    "FrozenStateError",
    "HostGradError",
    "HostSpecError",
    "HostVmapError",
    "InPlaceWarning",
    "InheritedInitError",
    "JaxInHostError",
    "JitDeclarationError",
    "LostUpdateWarning",
    "NothingToDifferentiateError",
    "NumberError",
    "PackError",
    "PackedAttributeError",
    "PlaceError",
    "PurestateError",
    "PurestateWarning",
    "ReservedNameError",
    "RetraceWarning",
    "SharedBufferWarning",
    "StackError",
    "StateDriftWarning",
    "StaticFieldError",
    "StrictFieldError",
    "TracedEqualityError",
    "UnannotatedArrayError",
    "UndeclaredFieldError",
    "UnfinishedStateError",
    "UnhashableStateError",
    "UnsetFieldError",
]

for _name in __all__:  # tracebacks show where users find the class
    globals()[_name].__module__ = __name__
