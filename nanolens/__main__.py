import sys

from nanolens.cli import main

sys.exit(main())
