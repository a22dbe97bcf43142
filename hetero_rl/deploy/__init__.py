"""What a deployment needs besides the programs: the needs of containers, certificates and credentials."""
