# SPDX-License-Identifier: Apache-2.0
"""Architectures of other people's libraries, run on the device and compared with the CPU.

    python -m torchtpu_core.testing.model_zoo bert llama --modes fused,compile

Models are built from small configurations with drawn weights: nothing is fetched. Needs
`transformers` (`requirements/zoo.txt`); importing this package does not.
"""
