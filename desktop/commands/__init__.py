"""One file per command: `register(commands)` declares its arguments, `run(args)` does its work and gives the status."""
