"""What a file asks for and the process may not have is an error, before it is taken and after."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent

#: In a process of its own: a limit on addresses holds for all of one.
PRELUDE = """
import resource, sys
import onegraph, psutil

def limit(more):
    '''Addresses that may be asked for from now on; None for any.'''
    most = resource.RLIM_INFINITY if more is None else psutil.Process().memory_info().vms + more
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

def load(**options):
    options = dict(device="cpu", threads=1, max_batch=1, progress=False) | options
    return onegraph.LLM(sys.argv[1], **options)

def refused(act):
    try:
        act()
    except onegraph.OutOfMemoryError as e:
        return str(e)
    sys.exit("nothing was refused")

def works(llm):
    return llm.generate("c", max_tokens=1, ignore_eos=True, temperature=0.0).token_ids

BUFFER = int(sys.argv[2])
"""

FORESEEN = """
limit(BUFFER)
text = refused(load)
for part in ["activations of 256 rows", "limits on this process", "use a smaller n_ctx"]:
    assert part in text, text
# What is smaller is loaded all the same, and answers.
with load(n_ctx=2) as llm:
    assert works(llm)
"""

UNFORESEEN = """
with load(n_ctx=256) as llm:
    expected = works(llm)
    limit(16 << 20)
    # What the rows are worked on with is taken with the first prompt of so many.
    text = refused(lambda: llm.generate("cd" * 100, max_tokens=1))
    assert "more than the system can allocate" in text, text
    limit(None)
    assert works(llm) == expected
    assert llm.generate("cd" * 100, max_tokens=1, ignore_eos=True).token_ids
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits on addresses are Linux's")
@pytest.mark.parametrize("script", [FORESEEN, UNFORESEEN], ids=["foreseen", "unforeseen"])
def test_activations_beyond_the_limit_of_the_process(script: str, tmp_path: Path) -> None:
    sys.path.insert(0, str(HERE))
    try:
        import activations
    finally:
        sys.path.remove(str(HERE))
    path = tmp_path / "wide.gguf"
    path.write_bytes(activations.wide().bytes())
    command = [sys.executable, "-c", PRELUDE + script, path, str(2 * activations.BUFFER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
