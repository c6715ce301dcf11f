"""`python -m tripower`."""

from tripower.api.cli import start

if __name__ == "__main__":
    start()
