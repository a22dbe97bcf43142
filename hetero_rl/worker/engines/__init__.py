"""Inference engines that ship with hetero-rl. A backend names the one it uses as "module:Class"."""
