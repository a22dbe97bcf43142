"""The trainer: finished groups in, optimizer steps and weight versions out.

Start reading at `loop`; `hetero_rl.trainer.session.train` is what a command calls. Nothing is imported here, so that
`hetero_rl.trainer.sinks` can be used without torch.
"""
