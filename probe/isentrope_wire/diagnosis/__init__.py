"""How a run is doing: the course of its entropy, what pulls it, and whether a pushed control keeps
its promise.

- `course`: from which loss on a run is watched or acted on, the pace of its entropy, the forecast
- `pull`: the tokens that pull most; `slope`: the slope of noisy values
- `effect`: what a control would do, and which of its knobs cannot act; `verdict`: what it did over
    its first steps
- `health`: the health line: level, sentence, cause and suggestion
"""
