# Message send and fiber switch for x86-64 (System V).
# objc_msgSend keeps every argument register, looks the method up and jumps to it, so that arguments on the stack (a
# 24-byte MTLSize by value) stay where they are. In objc_msgSend_stret the result pointer shifts self and _cmd by one.
        .intel_syntax noprefix
        .text
        .macro TRAMPOLINE name, self, selector
        .globl \name
        .type \name, @function
\name:
        test \self, \self
        jz 1f
        push rbp
        mov rbp, rsp
        sub rsp, 192
        mov [rsp], rdi
        mov [rsp+8], rsi
        mov [rsp+16], rdx
        mov [rsp+24], rcx
        mov [rsp+32], r8
        mov [rsp+40], r9
        mov [rsp+48], rax
        movaps [rsp+64], xmm0
        movaps [rsp+80], xmm1
        movaps [rsp+96], xmm2
        movaps [rsp+112], xmm3
        movaps [rsp+128], xmm4
        movaps [rsp+144], xmm5
        movaps [rsp+160], xmm6
        movaps [rsp+176], xmm7
        mov rcx, \self
        mov rsi, \selector
        mov rdi, rcx
        call sm_objc_lookup@PLT
        mov r11, rax
        mov rdi, [rsp]
        mov rsi, [rsp+8]
        mov rdx, [rsp+16]
        mov rcx, [rsp+24]
        mov r8, [rsp+32]
        mov r9, [rsp+40]
        mov rax, [rsp+48]
        movaps xmm0, [rsp+64]
        movaps xmm1, [rsp+80]
        movaps xmm2, [rsp+96]
        movaps xmm3, [rsp+112]
        movaps xmm4, [rsp+128]
        movaps xmm5, [rsp+144]
        movaps xmm6, [rsp+160]
        movaps xmm7, [rsp+176]
        leave
        jmp r11
1:      xor eax, eax
        xor edx, edx
        pxor xmm0, xmm0
        pxor xmm1, xmm1
        ret
        .size \name, . - \name
        .endm
        TRAMPOLINE objc_msgSend, rdi, rsi
        TRAMPOLINE objc_msgSend_fpret, rdi, rsi
        TRAMPOLINE objc_msgSend_stret, rsi, rdx

# void sm_switch(void** save, void* to)
        .globl sm_switch
        .hidden sm_switch
        .type sm_switch, @function
sm_switch:
        push rbp
        push rbx
        push r12
        push r13
        push r14
        push r15
        mov [rdi], rsp
        mov rsp, rsi
        pop r15
        pop r14
        pop r13
        pop r12
        pop rbx
        pop rbp
        ret

# void* sm_fiber(char* top, void (*main)()): a stack on which sm_switch enters main
        .globl sm_fiber
        .hidden sm_fiber
        .type sm_fiber, @function
sm_fiber:
        and rdi, -16
        mov qword ptr [rdi-8], 0
        mov [rdi-16], rsi
        lea rax, [rdi-64]
        xor ecx, ecx
        mov [rax], rcx
        mov [rax+8], rcx
        mov [rax+16], rcx
        mov [rax+24], rcx
        mov [rax+32], rcx
        mov [rax+40], rcx
        ret
        .section .note.GNU-stack, "", @progbits
