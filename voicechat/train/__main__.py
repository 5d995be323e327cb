"""``python -m voicechat.train STEP --work DIR``."""

from __future__ import annotations

import argparse
import sys

from voicechat.train.cli import add_arguments, main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m voicechat.train", description="Train the embedded voice.")
    add_arguments(parser)
    sys.exit(main(parser.parse_args()))
