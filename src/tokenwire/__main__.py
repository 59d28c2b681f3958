"""`python -m tokenwire` is the `tokenwire` command."""

import sys

from tokenwire.cli import main

sys.exit(main())
