import torch,sys,os,gc
torch.tpu.set_eager_mode("fused")
from torchtpu_eager import fused
fused.configure(max_ops=10**9, patience=10**6, max_held_bytes=1<<40)
x=torch.randn(64,64).to("tpu"); y=torch.randn(64,64).to("tpu")
from torchtpu_core import _C
gc.disable()
z=x+y
import time
t=time.perf_counter()
for _ in range(1200000): z=x+y
print((time.perf_counter()-t)/1.2e6*1e6)
sys.stdout.flush(); os._exit(0)
