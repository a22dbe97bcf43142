"""The command line: `hetero-rl`. A module per command; heavy packages are imported only by the command that needs them."""
