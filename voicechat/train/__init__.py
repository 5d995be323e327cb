"""Training of the embedded voice (``voicechat train STEP --work DIR``).

The steps, in order; each keeps what it has finished and goes on from there when it is run again:

``texts``
    ``--wordnet wordnet-base.deb --thinker smollm2-135m=FILE.gguf --thinker qwen2.5-coder-0.5b=FILE.gguf``:
    sentences, replies of the Thinkers, their hidden states.
``speech``
    ``--teacher heart=hibari --teacher joe=piper:en_US-joe-medium.onnx --teacher alto=hibari:0.85 --share joe=0.3``:
    the teachers speak the texts, on all cores, and say where each symbol lies in the sound. The first voice is the
    default. Kinds and shares are told in :mod:`voicechat.train.teachers`; ``--seconds`` ends the step early.
``voicebox``
    Encoder and decoder, codes of all speech, then a GAN on the decoder.
``decoder``
    In place of it, to train the decoder of packed ``--weights`` on; ``--encoder`` if that of its codes was kept.
``talker``
    The Talker on codes, pointers, symbols and hidden states.
``pack``
    The weights folder of the package. ``--plain-decoder`` takes the decoder as it was before the GAN.
``evaluate``
    ``--whisper FOLDER`` and the ``--teacher`` of each voice to judge: word error rate and length of the packed voice
    beside the teacher's. Pack again to put the figures on the model card.

``thinker``
    ``--thinker NAME=DIR``: a matrix for another chat LLM, a Hugging Face folder of any architecture; see
    :mod:`voicechat.train.projection`. Needs none of the other steps: the packaged Talker is its own teacher.

With ``--watch`` ``speech``, ``voicebox`` and ``talker`` may be started together with ``texts`` and wait for each
other's results. On one H200 GPU with 16 CPU cores all of it takes about 22 minutes with ``voicebox --seconds 330
--gan-seconds 270`` and ``talker --seconds 610``. ``--tiny`` runs a step in seconds on a CPU.
"""
