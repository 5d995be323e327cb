"""``python -m voicechat`` is the command ``voicechat``."""

import sys

from voicechat.cli import main

sys.exit(main())
