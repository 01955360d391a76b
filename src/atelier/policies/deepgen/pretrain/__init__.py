"""Pre-training of the embedded model: language model, connector and transformer at once, on
pictures of the scene world with words and with shapes.

    python -m atelier.policies.deepgen.pretrain train --out DIR
    python -m atelier.policies.deepgen.pretrain promote DIR/SNAPSHOT assets/tiny-deepgen
"""
