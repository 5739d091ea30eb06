"""Makes what stands beside these tests importable, however pytest was called."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
