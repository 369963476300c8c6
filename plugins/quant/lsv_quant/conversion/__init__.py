"""Conversion: a plain checkpoint becomes one in compressed-tensors, its scales fitted to a text if one is given.

``command``       ``lsv quantize``
``prepared``      the folder that ``--quantization-calibration`` serves, made once and kept in the cache
``convert``       the steps in order: declare, observe, round, write
``formats``       the names of the formats that can be written
``text``          the text that weights are fitted to
``observation``   what the layers are given while the model reads a text
``compensation``  rounding that makes up for its errors by what the layers were given
``schemes``       what compressed-tensors calls lsv's formats, and how it stores them
``folder``        the files of a checkpoint
"""
