"""Hardware counters by Nsight Compute: bytes that DRAM moved in single steps, beside the bytes that methods declare.

``perfkit profile`` starts ``ncu`` on a child (:mod:`perfkit.nsight.target`) that runs steps of known h under NVTX
ranges. Nothing here imports torch but that child.
"""
