"""The process `mainspring`. Start-up is a feature: a command imports what it needs when it is called."""

import sys

import mainspring


def main() -> None:
    """Runs the command that the process was started with, and ends the process with its exit code."""
    if sys.argv[1:] == ["--version"]:
        # The question asked most often; the answer needs no parser.
        print(f"mainspring {mainspring.__version__}")
        return
    try:
        from mainspring.app.process import run_process

        run_process()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
