"""`python -m scorelens.cli`."""

import sys

from scorelens.cli.parser import main

sys.exit(main())
