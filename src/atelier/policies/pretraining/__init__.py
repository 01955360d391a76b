"""What the pre-trainings of embedded models share; `<family>/pretrain` is one.

command_line    the verbs `train` and `promote`
options         knobs that are command-line arguments
run             the whole of a pre-training: clock, record, curve, log
course          the steps of a training that has so much time
compute         pixels, precision, compilation, optimizer, moving average
snapshots       what a snapshot has beside its weights, and how one becomes the embedded model
"""
