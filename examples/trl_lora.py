"""TRL with LoRA: only the adapters train, and the entropy is held at 80 % of its early level.

pip install peft
python examples/trl_lora.py
python examples/trl_lora.py --model Qwen/Qwen3-0.6B --learning-rate 1e-5
"""

from __future__ import annotations

from peft import LoraConfig
from trl import GRPOTrainer
from trl_grpo import arguments_of, config_of, model_and_tokenizer, prompts_for, share_of_vowels

import isentrope


def main() -> None:
    arguments = arguments_of("GRPO with TRL and LoRA, its entropy held by Isentrope.")
    model, tokenizer = model_and_tokenizer(arguments.model)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=share_of_vowels,
        args=config_of(arguments),
        train_dataset=prompts_for(arguments.model),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"),
    )
    probe = isentrope.attach(trainer, name="trl-lora", project="examples", hold="80%")
    trainer.train()
    trained = sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad)
    print(f"run: {probe.run_id}, {trained} trained weights")
    print(probe.show())


if __name__ == "__main__":
    main()
