"""A process with several interpreters: the main one alone has onegraph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: What all programs begin with: `inside(code)` runs code in an interpreter of its own, which ends.
HEAD = """
import sys, threading
try:
    import _interpreters
    def run(id, code):
        if (error := _interpreters.run_string(id, code)) is not None:
            raise RuntimeError(error.formatted)
except ImportError:
    import _xxsubinterpreters as _interpreters
    run = _interpreters.run_string

def inside(code):
    id = _interpreters.create()
    try:
        run(id, f"import sys; sys.path[:] = {sys.path!r}; " + code)
    except RuntimeError as e:
        return str(e)
    finally:
        _interpreters.destroy(id)
"""

REFUSED = """
said = inside("import onegraph")
assert "ImportError" in said and "only in the main interpreter of a process" in said, said
assert "multiprocessing" in said
"""

PROGRAMS = {
    "before the first": REFUSED + "import onegraph",
    "behind the first": "import onegraph" + REFUSED,
    "again and again": "import onegraph" + 5 * REFUSED,
    "its native part": REFUSED.replace("import onegraph", "import onegraph._native")
    + "import onegraph",
    "caught": '''
said = inside("""
try:
    import onegraph
except ImportError as e:
    assert e.name == "onegraph"
else:
    raise AssertionError
""")
assert said is None, said
import onegraph
''',
    "in threads": """
import onegraph
found = []
def imports():
    found.append(inside("import onegraph"))
for thread in [threading.Thread(target=imports) for _ in range(4)]:
    thread.start()
    thread.join()
assert len(found) == 4 and all("ImportError" in said for said in found), found
""",
}

#: And then the main one works, also while another is there.
TAIL = """
_interpreters.create()
with onegraph.LLM(sys.argv[1], device="cpu", n_ctx=64) as llm:
    assert llm.generate("tea", max_tokens=2).usage.completion_tokens <= 2
print("done")
"""


@pytest.mark.parametrize("when", PROGRAMS)
def test_an_import_in_a_second_interpreter_ends_cleanly(when: str, smollm2: Path) -> None:
    code = HEAD + PROGRAMS[when] + TAIL
    run = [sys.executable, "-c", code, str(smollm2)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
