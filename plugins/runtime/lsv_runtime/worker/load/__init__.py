"""Loading: from a resolved configuration to a filled model with its cache on a device.

Everything is decided before a weight is read, so a configuration that can't be served is refused at once.
``load`` in ``loaded`` runs the steps in order; each module is one step and is named after what it gives:

``device``    the device of a rank, and its connection to the other ranks
``declared``  the model on meta, from config.json alone, with the groups of its KV cache
``bound``     a kernel for each of its ops, and the attention backend
``fit``       how memory is split: with numbers alone (``memory``), then as measured (``peaks``, ``graphs``)
``streamed``  the layers that are kept in the host's memory, where that is asked for (``hosted``)
``loaded``    the weights in place, and the cache

``survey`` stops before the weights: it is what ``lsv plan`` and ``lsv kernels`` show.
"""
