"""What holds for every test."""

from __future__ import annotations

import os

# The tests run servers, browsers and training loops side by side on few cores: torch's threads must sleep while they
# wait for each other, not spin. Read once, when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
