"""``python -m lsv``."""

import sys

from lsv.cli.main import main

sys.exit(main())
