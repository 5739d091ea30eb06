"""The driver and the kernels under ASan and UBSan: exact bounds, defined arithmetic. The driver is
built for it and every kernel compiled twice as long: thorough."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"


def library(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True)
    return found.stdout.strip()


@pytest.fixture(scope="module")
def sanitized(ksim_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process with the sanitizers' run time and a driver built for it."""
    for name in ("libasan.so", "libubsan.so"):
        if not os.path.isabs(library(name)):
            pytest.skip(f"g++ has no {name}")
    done = subprocess.run(
        ["cargo", "run", "--quiet", "--package", "ksim", "--", "--library-dir"],
        cwd=ROOT,
        env=os.environ
        | {
            "KSIM_SANITIZE": "address,undefined",
            "CARGO_TARGET_DIR": str(ROOT / "target" / "ksim-sanitize"),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    preload = ("libasan.so", "libubsan.so", "libstdc++.so")
    return ksim_env | {
        "KSIM_LIBRARY_DIR": done.stdout.strip(),
        "KSIM_CXXFLAGS": SANITIZE,
        "KSIM_CACHE": str(tmp_path_factory.mktemp("sanitized")),
        "LD_PRELOAD": " ".join(library(name) for name in preload),
        # Python itself leaks; the driver counts its own.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


@pytest.mark.parametrize(
    ("file", "chosen"),
    # Of the products of warpgroups one, which all have a kernel of their own to compile; of the
    # overlapping ones two that stop and resume, each of which is a process too.
    [
        ("test_kernels.py", "not warpgroups or signed1-32"),
        ("test_graphs.py", ""),
        ("test_overlap.py", "queued or two_kernels"),
    ],
    ids=["kernels", "graphs", "overlap"],
)
def test_the_suite_is_clean(sanitized: dict[str, str], file: str, chosen: str) -> None:
    path = Path(__file__).with_name(file)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path), "-k", chosen],
        cwd=ROOT,
        env=sanitized,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert " passed" in done.stdout
    assert "runtime error" not in done.stdout + done.stderr


BODIES = {
    "a read just past an allocation": (
        "p.y[0] = p.x[p.n];",
        "AddressSanitizer: use-after-poison",
    ),
    "a local array": (
        "float local[4] = {1, 2, 3, 4}; float* at = p.n ? local : p.y; p.y[0] = at[p.n & 7];",
        "AddressSanitizer: stack-buffer-overflow",
    ),
    "a misaligned vector": (
        "p.y[0] = reinterpret_cast<const float4*>(p.x + 1)->y;",
        "runtime error: member access within misaligned address",
    ),
    "a shift that is too far": ("p.y[0] = 1 << p.n;", "runtime error: shift exponent 100"),
    "signed overflow": (
        "p.y[0] = 2147483600 + (int)p.n;",
        "runtime error: signed integer overflow",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_only_a_sanitizer_sees(sanitized: dict[str, str], name: str) -> None:
    body, report = BODIES[name]
    text = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from support.card import *
card = Card(Path({sanitized["KSIM_LIBRARY_DIR"]!r})).open()
k = card.kernel('''
struct P {{ const float* x; float* y; uint32_t n; }};
KERNEL(k, P) {{ {body} }}''')
x, y = card.upload(np.zeros(100, np.float32)), card.alloc(4)
for n in (3, 100):
    card.launch(k, 1, 1, params(x=x, y=y, n=n))
    card.synchronize()
print("unseen")
"""
    done = subprocess.run(
        [sys.executable, "-c", text], env=sanitized, capture_output=True, text=True, timeout=120
    )
    assert report in done.stderr, done.stderr[-3000:]
    assert "unseen" not in done.stdout
    assert done.returncode != 0
