# SPDX-License-Identifier: Apache-2.0
"""`torch.compile` for the `tpu` device: graphs run as XLA programs."""
