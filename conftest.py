"""Every example in the documentation is a test.

Python blocks of README.md and of the pages in docs/ run in the order in which they
stand, and share their names page by page. In src/ the examples of docstrings run, as
`>>>` or as Python blocks; there `jax`, `jnp`, `np` and `ps` need no import.
"""

import doctest
import importlib.metadata
import importlib.util
import pathlib
import platform
import re
import runpy
import sys
import types

from sybil import Document, Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection

# By its name, so that it is there without an installed package, too.
pytest_plugins = ["purestate_pytest"]
ROOT = pathlib.Path(__file__).resolve().parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# JAX_PLATFORMS, the compilation cache and the profiles of hypothesis hold for the
# examples too, and pytest reads that file only for what is in tests/.
runpy.run_path(str(ROOT / "tests" / "conftest.py"))


class Page(Document):
    """A page whose names live in a module, so that its classes can be found by name."""

    def __init__(self, text, path):
        super().__init__(text, path)
        name = re.sub(r"\W", "_", str(pathlib.Path(path).relative_to(ROOT)))
        module = types.ModuleType(name)
        sys.modules[name] = module
        self.namespace = vars(module)


def parse_docstring(document):
    """Find Python blocks, and `>>>` examples that stand outside of one."""
    blocks = list(PythonCodeBlockParser(doctest_optionflags=FLAGS)(document))
    yield from blocks
    for example in DocTestParser(optionflags=FLAGS)(document):
        if not any(b.start <= example.start < b.end for b in blocks):
            yield example


def import_common_names(namespace):
    import jax
    import jax.numpy as jnp
    import numpy as np

    import purestate as ps

    namespace.update(jax=jax, jnp=jnp, np=np, ps=ps)


def pages(**where):
    return Sybil(
        parsers=[PythonCodeBlockParser(doctest_optionflags=FLAGS), SkipParser()],
        document_types={".md": Page},
        **where,
    )


docstrings = Sybil(
    parsers=[parse_docstring],
    path="src/purestate",
    patterns=["*.py"],
    document_types={".py": PythonDocStringDocument},
    setup=import_common_names,
)
readme = pages(filenames=["README.md"])
docs = pages(
    path="docs",
    patterns=["*.md"],
    # The one page that is all about an extra.
    excludes=[] if importlib.util.find_spec("numba") else ["native.md"],
)

pytest_collect_file = SybilCollection((readme, docs, docstrings)).pytest()


def pytest_report_header():
    packages = ("jax", "jaxlib", "numpy")
    versions = (f"{name} {importlib.metadata.version(name)}" for name in packages)
    return f"versions: Python {platform.python_version()}, {', '.join(versions)}"
