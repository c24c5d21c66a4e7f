# SPDX-License-Identifier: Apache-2.0
"""Property tests of this folder have no deadline: a busy machine is not a failure."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
