"""Property tests here are about what is computed, not about how long a busy machine takes for it."""

from __future__ import annotations

import hypothesis

hypothesis.settings.register_profile("any speed", deadline=None)
hypothesis.settings.load_profile("any speed")
