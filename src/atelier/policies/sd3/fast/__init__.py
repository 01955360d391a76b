"""The transformer's blocks computed by fewer and larger kernels, on diffusers' own modules.

layers.py   linear layers of one input as one product, adapters included
block.py    the arithmetic of a block, of tensors alone
install.py  a block's tensors out of its modules, and its `forward` in place of the stock one
"""
