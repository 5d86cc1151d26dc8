"""`python -m proxy` is `sendonce`."""

from proxy.cli import main

main()
