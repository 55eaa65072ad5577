"""``hub`` with the API of Google Cloud at another URL: ``python -m tests.support.google URL run …``.

The environment of ip-address-controller has no variable for it.
"""

from __future__ import annotations

import sys

from hub_provider_gcp.config import GcpConfig

from hub.cli import main

if __name__ == "__main__":
    GcpConfig.model_fields["endpoint"].default = sys.argv.pop(1)
    GcpConfig.model_rebuild(force=True)
    main()
