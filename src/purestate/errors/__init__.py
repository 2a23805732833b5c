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
    HostEnvError,
    HostGradError,
    HostSimError,
    HostSpecError,
    HostVmapError,
    JaxInHostError,
    SimSpecError,
    SimulationError,
)
from purestate.errors._optax import OptimizerError
from purestate.errors._saving import (
    CorruptFileError,
    LoadError,
    LoadWarning,
    PersistError,
    SaveError,
)
from purestate.errors._sharding import ShardingError
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
from purestate.errors._testing import BackendError, LawError, StrategyError
from purestate.errors._transforms import (
    BatchAxisError,
    CombineError,
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
    WhereError,
)

__all__ = [
    "BackendError",
    "BatchAxisError",
    "CheckError",
    "CombineError",
    "ConsumedStateError",
    "CorruptFileError",
    "DeclarationError",
    "DerivedFieldError",
    "DraftError",
    "FieldError",
    "FrozenStateError",
    "HostEnvError",
    "HostGradError",
    "HostSimError",
    "HostSpecError",
    "HostVmapError",
    "InPlaceWarning",
    "InheritedInitError",
    "JaxInHostError",
    "JitDeclarationError",
    "LawError",
    "LoadError",
    "LoadWarning",
    "LostUpdateWarning",
    "NothingToDifferentiateError",
    "NumberError",
    "OptimizerError",
    "PackError",
    "PackedAttributeError",
    "PersistError",
    "PlaceError",
    "PurestateError",
    "PurestateWarning",
    "ReservedNameError",
    "RetraceWarning",
    "SaveError",
    "ShardingError",
    "SharedBufferWarning",
    "SimSpecError",
    "SimulationError",
    "StackError",
    "StateDriftWarning",
    "StaticFieldError",
    "StrategyError",
    "StrictFieldError",
    "TracedEqualityError",
    "UnannotatedArrayError",
    "UndeclaredFieldError",
    "UnfinishedStateError",
    "UnhashableStateError",
    "UnsetFieldError",
    "WhereError",
]

# What tracebacks, pickles and help() show is where an object is public.
for _name in __all__:
    globals()[_name].__module__ = __name__
