import sys

from nanoscope.cli import main

sys.exit(main())
