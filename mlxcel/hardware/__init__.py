"""What the machine is: BLAS, processor, memory limits and their description.

Importing this package must not import MLX, because the choice of BLAS has to come first.
"""
