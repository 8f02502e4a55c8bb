"""Lets ``python -m blockdiff_client.cli`` work like the `blockdiff-client` script."""

from .main import main

main()
