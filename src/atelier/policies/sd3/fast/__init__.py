"""The transformer's blocks computed by fewer and larger kernels, on diffusers' own modules.

layers.py   linear layers of one input as one product, adapters included
block.py    the arithmetic of a block, of tensors alone
held.py     whether modules still hold what something was made of
reading.py  a block's tensors out of its modules, kept until these hold others
install.py  a block's `forward` in place of the stock one
graphs.py   whole passes without gradients, recorded once and launched at once
"""
