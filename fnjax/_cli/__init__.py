"""The command `fnjax`: its subcommands, and what they share. That of the porter lies in port."""
