"""The trainer: finished groups in, optimizer steps and weight versions out. Start reading at `loop`."""
