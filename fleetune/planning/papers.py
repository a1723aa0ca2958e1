"""BibTeX entries of the papers that strategies, their methods and their compression follow."""

ASTEROID = """@inproceedings{ye2024asteroid,
  title = {Asteroid: Resource-Efficient Hybrid Pipeline Parallelism for Collaborative {DNN} Training on Heterogeneous
           Edge Devices},
  author = {Ye, Shengyuan and Zeng, Liekang and Chu, Xiaowen and Xing, Guoliang and Chen, Xu},
  booktitle = {ACM MobiCom},
  year = {2024},
  doi = {10.1145/3636534.3649363}
}"""

FUSIONLLM = """@article{tang2024fusionllm,
  title = {{FusionLLM}: A Decentralized {LLM} Training System on Geo-distributed {GPUs} with Adaptive Compression},
  author = {Tang, Zhenheng and Kang, Xueze and Yin, Yiming and Pan, Xinglin and Wang, Yuxin and He, Xin and
            Wang, Qiang and Zeng, Rongfei and Zhao, Kaiyong and Shi, Shaohuai and Zhou, Amelie Chi and Li, Bo and
            He, Bingsheng and Chu, Xiaowen},
  journal = {arXiv preprint arXiv:2410.12707},
  year = {2024}
}"""

TAH_QUANT = """@article{he2025tahquant,
  title = {{TAH-QUANT}: Effective Activation Quantization in Pipeline Parallelism over Slow Network},
  author = {He, Guangxin and Cao, Yuan and He, Yutong and Bai, Tianyi and Chen, Kai and Yuan, Kun and Yuan, Binhang},
  journal = {arXiv preprint arXiv:2506.01352},
  year = {2025}
}"""

LOLA_DEFT = """@article{wu2025deft,
  title = {Resource Management for Low-latency Cooperative Fine-tuning of Foundation Models at the Network Edge},
  author = {Wu, Hai and Chen, Xu and Huang, Kaibin},
  journal = {IEEE Transactions on Wireless Communications},
  year = {2025},
  note = {arXiv:2407.09873}
}"""

SPLIT_LEARNING = """@inproceedings{tirana2024workflow,
  title = {Workflow Optimization for Parallel Split Learning},
  author = {Tirana, Joana and Tsigkari, Dimitra and Iosifidis, George and Chatzopoulos, Dimitris},
  booktitle = {IEEE INFOCOM},
  year = {2024},
  note = {arXiv:2402.10092}
}"""

D2FT = """@article{ding2025d2ft,
  title = {You Don't Need All Attentions: Distributed Dynamic Fine-Tuning for Foundation Models},
  author = {Ding, Shiwei and Zhang, Lan and Wang, Zhenlin and Ateniese, Giuseppe and Yuan, Xiaoyong},
  journal = {arXiv preprint arXiv:2504.12471},
  year = {2025}
}"""

SGD = """@article{robbins1951stochastic,
  title = {A Stochastic Approximation Method},
  author = {Robbins, Herbert and Monro, Sutton},
  journal = {The Annals of Mathematical Statistics},
  volume = {22},
  number = {3},
  pages = {400--407},
  year = {1951}
}"""

DATA_PARALLEL = """@article{li2020pytorch,
  title = {{PyTorch} Distributed: Experiences on Accelerating Data Parallel Training},
  author = {Li, Shen and others},
  journal = {Proceedings of the VLDB Endowment},
  volume = {13},
  number = {12},
  pages = {3005--3018},
  year = {2020},
  note = {arXiv:2006.15704}
}"""

GPIPE = """@inproceedings{huang2019gpipe,
  title = {{GPipe}: Efficient Training of Giant Neural Networks using Pipeline Parallelism},
  author = {Huang, Yanping and Cheng, Youlong and Bapna, Ankur and Firat, Orhan and Chen, Dehao and Chen, Mia and
            Lee, HyoukJoong and Ngiam, Jiquan and Le, Quoc V. and Wu, Yonghui and others},
  booktitle = {Advances in Neural Information Processing Systems},
  volume = {32},
  year = {2019},
  note = {arXiv:1811.06965}
}"""

PIPEDREAM = """@inproceedings{narayanan2019pipedream,
  title = {{PipeDream}: Generalized Pipeline Parallelism for {DNN} Training},
  author = {Narayanan, Deepak and Harlap, Aaron and Phanishayee, Amar and Seshadri, Vivek and Devanur, Nikhil R. and
            Ganger, Gregory R. and Gibbons, Phillip B. and Zaharia, Matei},
  booktitle = {Proceedings of the 27th ACM Symposium on Operating Systems Principles},
  pages = {1--15},
  year = {2019}
}"""

EDDL = """@inproceedings{hao2021eddl,
  title = {{EDDL}: A Distributed Deep Learning System for Resource-limited Edge Computing Environment},
  author = {Hao, Pengzhan and Zhang, Yifan},
  booktitle = {IEEE/ACM Symposium on Edge Computing (SEC)},
  pages = {1--13},
  year = {2021}
}"""

DAPPLE = """@inproceedings{fan2021dapple,
  title = {{DAPPLE}: A Pipelined Data Parallel Approach for Training Large Models},
  author = {Fan, Shiqing and Rong, Yi and Meng, Chen and Cao, Zongyan and Wang, Siyu and Zheng, Zhen and Wu, Chuan and
            Long, Guoping and Yang, Jun and Xia, Lixue and others},
  booktitle = {Proceedings of the 26th ACM SIGPLAN Symposium on Principles and Practice of Parallel Programming},
  pages = {431--445},
  year = {2021}
}"""

BY_METHOD: dict[str, dict[str, str]] = {
    "hpp": {
        "search": ASTEROID,
        "asteroid": ASTEROID,
        "single": SGD,
        "dp": DATA_PARALLEL,
        "pp": GPIPE,
        "eddl": EDDL,
        "dapple": DAPPLE,
        "pipedream": PIPEDREAM,
    },
}
"""kind -> method -> paper, for methods that follow another paper than the strategy that uses them."""
