"""``python -m lsv``."""

import sys

from lsv.cli.entry import main

sys.exit(main())
